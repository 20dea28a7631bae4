"""More than one device: processes under torchrun, models placed over several GPUs, and faults."""
