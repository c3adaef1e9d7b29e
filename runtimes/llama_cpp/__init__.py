"""GGUF models that llama.cpp executes, through llama-cpp-python. Needs no torch."""
