"""What each operator is, one row an operator: the other packages look here, and name no operators themselves."""
