"""What the benchmarks run: real shapes with random weights, and small trained models enlarged to them."""
