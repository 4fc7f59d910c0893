"""Weight-sync transports that need nothing but the host: shared memory, files, and the choice between transports."""
