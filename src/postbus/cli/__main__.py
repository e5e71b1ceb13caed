"""`python -m postbus.cli`, for when the script is not on the PATH."""

from postbus.cli import main

if __name__ == "__main__":
    main()
