"""Short trainings on a real GPU with an injected fault, recorded with the readings of the agent's GPU sources."""
