"""Live I/O around the core: listeners, upstream connections, probes, scrapes, admin, life cycle."""
