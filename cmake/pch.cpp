// Owner of a precompiled header that several targets share.
