"""THE VERDICT AS A PAGE: one HTML file that needs nothing else, to read, to print and to send on."""
