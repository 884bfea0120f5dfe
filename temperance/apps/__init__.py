"""What people use without writing a loop: the command line, tables, scikit-learn, other libraries, the demo."""
