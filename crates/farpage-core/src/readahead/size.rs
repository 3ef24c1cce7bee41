//! The size of a window, as the kernel computes it for both its readahead modes.

/// The next window in pages, from the page of the last event, the page missed now, the readahead pages
/// touched since the last miss, the greatest window allowed and the last window. It grows with the hits and
/// never shrinks faster than by half. A power of two if `max_pages` and `prev_win` are; exceeds `max_pages`
/// only while a `prev_win` of more than twice that decays; 0 only if `max_pages` is.
#[must_use]
pub const fn window(prev_page: u64, page: u64, hits: u32, max_pages: u32, prev_win: u32) -> u32 {
    let wanted = if hits > 0 {
        let pages = hits.saturating_add(2);
        let pages = if pages > 1 << 31 {
            1 << 31
        } else {
            pages.next_power_of_two()
        };
        if pages < 4 { 4 } else { pages }
    } else if page.abs_diff(prev_page) == 1 {
        2
    } else {
        1
    };
    let allowed = if wanted < max_pages { wanted } else { max_pages };
    let decayed = prev_win / 2;
    if allowed > decayed { allowed } else { decayed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_by_hand() {
        // (hits, expected) far from the last page, no last window, limit 32.
        for (hits, win) in [
            (0, 1),
            (1, 4),
            (2, 4),
            (3, 8),
            (6, 8),
            (7, 16),
            (14, 16),
            (15, 32),
            (63, 32),
        ] {
            assert_eq!(window(100, 500, hits, 32, 0), win, "hits {hits}");
        }
        assert_eq!(window(100, 101, 0, 8, 0), 2);
        assert_eq!(window(100, 99, 0, 8, 0), 2);
        assert_eq!(window(100, 100, 0, 8, 0), 1);
        assert_eq!(window(100, 102, 0, 8, 0), 1);
        assert_eq!(window(0, u64::MAX, 0, 8, 0), 1, "no wrap around zero");
        assert_eq!(window(0, 9, u32::MAX, u32::MAX, 0), 1 << 31);
    }

    #[test]
    fn window_decays_by_half() {
        let mut win = 8;
        let mut seen = std::vec::Vec::new();
        for _ in 0..4 {
            win = window(100, 500, 0, 8, win);
            seen.push(win);
        }
        assert_eq!(seen, [4, 2, 1, 1]);
        assert_eq!(window(100, 500, 0, 8, 32), 16, "decay wins over the limit");
    }
}
