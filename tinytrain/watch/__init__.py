"""Tools that look at a run and never take part in it."""
