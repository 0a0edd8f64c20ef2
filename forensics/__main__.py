"""`python -m forensics`."""

from forensics.cli.app import main

main()
