"""`python -m dex_embedded`: the same as the `dex-embedded` command."""

from dex_embedded.cli import main

if __name__ == "__main__":
    main()
