import unittest

import glyphs

E = ["." + row + "." for row in ("######", "#.....", "#.....", "#####.", "#.....", "#.....", "######", "......")]


class TestGlyphs(unittest.TestCase):
    def test_a_letter(self):
        self.assertEqual(glyphs.draw("L")[0], ".#......")

    def test_two_letters_stand_side_by_side(self):
        self.assertEqual(glyphs.draw("HL")[0], ".#....#..#......")

    def test_what_is_no_font(self):
        with self.assertRaises(ValueError):
            glyphs.load(b"PNG")

    def test_the_letter_e(self):
        self.assertEqual(glyphs.draw("E"), E)

    def test_a_font_that_ends_early_is_refused(self):
        with self.assertRaises(ValueError):
            glyphs.load(b"GLY1" + b"A" + bytes(7))


if __name__ == "__main__":
    unittest.main()
