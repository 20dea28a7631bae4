"""`python -m dartree_tui`."""

from dartree_tui.cli import main

if __name__ == "__main__":
    main()
