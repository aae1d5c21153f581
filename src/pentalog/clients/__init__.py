"""Clients of the doors, for those who use pentalog; they need nothing of the broker."""
