"""Short trainings on a real GPU with one thing made to go wrong, recorded with what the agent's GPU sources saw."""
