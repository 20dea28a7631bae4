"""`python -m dartree_core` is `dartree`."""

from dartree_core.cli import main

if __name__ == "__main__":
    main()
