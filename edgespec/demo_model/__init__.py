"""The bundled demo model, and the recipe that makes it."""
