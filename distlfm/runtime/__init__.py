"""What every verb needs while it runs: reporting, signals, threads, addresses, environments of child processes."""
