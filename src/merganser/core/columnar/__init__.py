"""Arrow arrays and tables: taking, comparing, hashing and spooling rows. Knows no dataset."""
