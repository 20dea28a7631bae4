"""Where a run's time goes, against what the machine could do; nothing here runs unless asked."""
