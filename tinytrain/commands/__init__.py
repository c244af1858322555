"""What ``python -m tinytrain`` can do: ``main`` reads the command, and each command has a module with its options."""
