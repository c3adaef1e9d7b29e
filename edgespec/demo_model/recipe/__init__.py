"""The bundled demo model: its data generator, trainer and evaluation."""
