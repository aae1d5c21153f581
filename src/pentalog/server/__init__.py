"""Sockets, signals and the event loop: the only package that knows them."""
