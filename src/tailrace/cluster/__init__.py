"""The cluster's metadata: its image at one moment, the store that holds it, and changes to it."""
