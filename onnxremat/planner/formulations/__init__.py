"""Mathematical programs for rematerialisation, one file per formulation."""
