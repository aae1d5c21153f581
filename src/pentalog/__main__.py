"""`python -m pentalog` is the same as `pentalog`."""

from pentalog.cli.main import main

main()
