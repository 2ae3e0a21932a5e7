"""What every verb needs while it runs: reporting, seeds, environments of child processes."""
