"""HOW IS A RUN HANDED TO SOMEBODY ELSE: one file with its evidence and the verdict, sliced and redacted at wish."""
