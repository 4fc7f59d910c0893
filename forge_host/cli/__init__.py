"""The command line: `forge-host`. Each command is imported only when it is called."""
