"""Objects of other buckets that packs show in place, and the settings that name the buckets."""
