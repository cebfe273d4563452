"""HOW IS IT TOLD: sentences, the published JSON document, the terminal. Computes no verdict."""
