"""What goes where under the dial."""
