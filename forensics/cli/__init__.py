"""The command line: parse, load the configuration, call one pipeline, print. A module per command."""
