//! What authentication hands to the operations.
