"""How a machine, a rank, a disk or an object store is lost, and what is around it."""
