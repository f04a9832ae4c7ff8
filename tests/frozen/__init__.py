"""Values that the work on lighter machines may not change."""
