"""Commands on property graphs."""
