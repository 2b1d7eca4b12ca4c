"""`python -m fleetlimit`: the command `fleetlimit`, where scripts are not on the path."""

from fleetlimit.cli import main

if __name__ == "__main__":
    main()
