"""The probe: what watches a program from inside, and never changes it."""
