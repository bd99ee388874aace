"""The cluster's metadata: the image of it at one moment, the store that holds it, and the changes to it."""
