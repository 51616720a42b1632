"""The kvtroupe command, one file per subcommand."""
