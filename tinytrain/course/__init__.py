"""What only the notebooks need. Nothing else in the package imports it."""
