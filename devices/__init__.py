"""What this machine is and how fast it measured."""
