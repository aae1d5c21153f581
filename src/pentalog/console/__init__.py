"""The web console: a process of its own beside a broker, a client of it like any other."""
