"""What is put on record, sealed, counted and followed: the part of the record that runs in each gateway."""
