"""`python -m strandline` is the command line."""

from strandline.cli import main

if __name__ == "__main__":
    main()
