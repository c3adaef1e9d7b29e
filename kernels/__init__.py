"""Operations. Nothing of ours lies below this folder."""
