"""Statements about sizes, one a line: those that hold for all sizes, and those that fail at some.

A line is a statement, or a statement, a bar, and assumptions with semicolons between. Variables are at least 1.
`benchmarks/prover.py` reads it too.
"""

from __future__ import annotations

HOLDS = """
max(n, m) + min(n, m) == n + m
4*(n + 1) - 4 == 4*n
(n + m)**2 == n**2 + 2*n*m + m**2
b*n*m == m*n*b
((n + 3)//4)*4 >= n
(32*x + y)//64 == x//2 | 0 <= y < 32
min(y + x, z) - x == min(y, z - x)
(n*m)//m == n
(n*m)//m == n | m >= 1
(n//2)//3 == n//6
n*4 == 4*n
n + m == m + n
(a + b) + c == a + (b + c)
a*(b + c) == a*b + a*c
(n - m)*(n + m) == n**2 - m**2
(n + 1)**3 == n**3 + 3*n**2 + 3*n + 1
n - n == 0
0*n == 0
2*n != 2*m + 1
4*n != 6*m + 1
n + 1 > n
n < n + 1
n >= 1
n > 0
n != 0
n*m >= 1
n*m >= n
b*s >= b
n*m*k >= n + m + k - 2
n*n >= n
n*n >= 2*n - 1
n**2 + m**2 >= 2*n*m
n**2 + m**2 != 3
(n*(n + 1)) % 2 == 0
(n*(n + 1)*(n + 2)) % 6 == 0
n*n % 4 <= 1
n*n % 3 != 2
(n*n*n - n) % 3 == 0
(4*n) % 4 == 0
(4*n + 2) % 4 == 2
(n % 4) % 2 == n % 2
(n % 2) % 4 == n % 2
(n + 4) % 4 == n % 4
(n % 4 + m % 4) % 4 == (n + m) % 4
((n % 4)*(m % 4)) % 4 == (n*m) % 4
n % 4 < 4
n % 4 >= 0
n % 4 <= n
n % m < m
n % m <= n
n % n == 0
n // n == 1
0 // n == 0
n // 1 == n
n % 1 == 0
(n // 4)*4 + n % 4 == n
(n // m)*m + n % m == n
(n // 4)*4 <= n
(n // m)*m <= n
n // m <= n
n // 4 <= n
n // 4 < n
(n + m - 1) // m == ceildiv(n, m)
ceildiv(n, 4) == (n + 3)//4
ceildiv(n, 4)*4 >= n
ceildiv(n, 4)*4 < n + 4
ceildiv(n, m)*m >= n
ceildiv(n, m)*m <= n + m - 1
ceildiv(n, m) >= n // m
ceildiv(n, m) <= n // m + 1
ceildiv(n, m) <= n
ceildiv(n, m) >= 1
ceildiv(4*n, 4) == n
ceildiv(ceildiv(n, 2), 3) == ceildiv(n, 6)
n//2 + ceildiv(n, 2) == n
n//4 + ceildiv(3*n, 4) == n
b - 2*ceildiv(b, 3) <= ceildiv(b, 3)
ceildiv(b, 3) + ceildiv(b, 3) + (b - 2*ceildiv(b, 3)) == b
(n + 4*m)//4 == n//4 + m
(8*n + 4)//4 == 2*n + 1
(8*n + 3)//4 == 2*n
(6*n)//4 == (3*n)//2
(n*m + n)//n == m + 1
(n*m + k)//m == n + k//m
(n*m*k)//(m*k) == n
(b*s*h)//(b*h) == s
(n*m - 1)//m == n - 1
(n*m) % m == 0
(n*m + 1) % m == 1 | m >= 2
(n*m + k) % m == k % m
(n + m)//m == n//m + 1
n // m == 0 | n < m
n % m == n | n < m
n // m == 1 | m <= n; n < 2*m
n // m >= 2 | n >= 2*m
n // m // k == n // (m*k)
(n // 2) // 2 == n // 4
((n // 2) % 3)*2 + n % 2 == n % 6
(n // 8) % 4 == (n % 32) // 8
n // 2 <= m // 2 | n <= m
n // 3 + m // 3 <= (n + m) // 3
max(n, n) == n
max(n, m) == max(m, n)
max(n, 1) == n
max(n, 0) == n
min(n, 1) == 1
min(n, 0) == 0
max(n, n - 3) == n
max(max(n, m), k) == max(n, max(m, k))
max(n, min(n, m)) == n
min(n, max(n, m)) == n
max(n, m) >= n
max(n, m) <= n + m
min(n, m) <= m
max(n, m) - min(n, m) == max(n - m, m - n)
max(n, m)*min(n, m) == n*m
max(n, m)*k == max(n*k, m*k)
max(n + k, m + k) == max(n, m) + k
max(2*n, 2*m) == 2*max(n, m)
max(-n, -m) == -min(n, m)
max(n//2, m//2) == max(n, m)//2
max(n, m) == m | n <= m
min(n, m) == n | n <= m
max(n, 64) == 64 | n <= 64
max(n - m, 0) == n - m | n >= m
min(n, 4) % 5 == min(n, 4)
max(min(n, 8), 4) <= 8
n % 8 == 0 | n % 16 == 0
n % 4 == 0 | n % 8 == 0
n // 4 * 4 == n | n % 8 == 0
(n // 8)*8 == n | n % 8 == 0
n >= 8 | n % 8 == 0
n != 12 | n % 8 == 0
(n*m) % 8 == 0 | n % 8 == 0
(n*m) % 8 == 0 | n % 4 == 0; m % 2 == 0
(n + m) % 8 == 0 | n % 8 == 0; m % 8 == 0
(n // 2) % 4 == 0 | n % 8 == 0
ceildiv(n, 8) == n // 8 | n % 8 == 0
n % 2 == 1 | n % 4 == 3
(n + 1) % 4 == 0 | n % 4 == 3
n % 6 == 4 | n % 2 == 0; n % 3 == 1
n % 2 == 0 | n == 2*m
n == 2*m | n == 2*m
m == n // 2 | n == 2*m
n*k == 2*m*k | n == 2*m
n == 3*k | n == m + k; m == 2*k
n % 2 == 0 | 3*n == 2*m
n + 1 == m | n == m - 1
n == m | n <= m; m <= n
n < k | n < m; m < k
n <= 64 | n <= m; m <= 64
n + m >= 5 | n + k == 4; m > k
n*m <= 4096 | n <= 64; m <= 64
b <= 4096 | b*s <= 4096
b*s + 1 <= 4097 | b*s <= 4096
n % m == 0 | n % m == 0
(n*k) % m == 0 | n % m == 0
n // m * m == n | n % m == 0
n >= m | n % m == 0
m % 2 == 0 | n % 6 == 0; m % n == 0
n // m == k | n == m*k
n*m == k | n*m == k
n*m + 1 > k | n*m == k
n != m | n < m
n != 5 | n != 5
n == 4 | 4 <= n < 5
n == 4 | n >= 4; n <= 4
n*n == 16 | n == 4
x*4 + y < 4*z | 0 <= y < 4; 0 <= x < z
(x*4 + y)//4 == x | 0 <= y < 4; x >= 0
(x*4 + y) % 4 == y | 0 <= y < 4; x >= 0
(x*m + y)//m == x | 0 <= y; y < m; x >= 0
(x*m + y) % m == y | 0 <= y; y < m; x >= 0
1 <= n <= 64 | n <= 64
n >= 1 and m >= 1
mod(n, 8) == floordiv(n, 8)*0 + n % 8
n >= 0 | n >= 0
n*2 >= 0 | n >= 0
7 == 7
2**10 == 1024
select(n <= 64, n, 64) == min(n, 64)
select(n >= m, n, m) == max(n, m)
select(n < m, n, m) == min(n, m)
(n if n <= m else m) == min(n, m)
select(n == m, n, m) == m
select(0 <= n, n, -n) == n
select(n*n >= n, n, 0) == n
select(n > 4, 1, 0) + select(n <= 4, 1, 0) == 1
select(n > 4, n, m) == select(n <= 4, m, n)
2*select(n > 4, n, m) == select(n > 4, 2*n, 2*m)
select(n > 4, n, m) + k == select(n > 4, n + k, m + k)
select(n < m, n, m)*select(n < m, m, n) == n*m
select(n > m, n - m, m - n) == max(n, m) - min(n, m)
select(n > 4, select(n > 2, 1, 2), 3) == select(n > 4, 1, 3)
select(n > 4, select(n > 6, 1, 2), select(n > 6, 3, 2)) == select(n > 6, 1, 2)
select(n > 4, 4, 8) % 4 == 0
select(n > 4, 4, 8)//4 == select(n > 4, 1, 2)
max(select(n > 4, 4, 8), 3) >= 4
select(n <= 8, n, 8) <= 8
select(n <= m, m, n) >= n
select(n == 2*m, n, m) >= m
select(n == m, n*k, m*k) == m*k
select(k == 1, n, n*k) == n*k
select(n % 2 == 0, n//2, ceildiv(n, 2)) == ceildiv(n, 2)
select(n % 2 == 0, n, n + 1) % 2 == 0
select(n % 4 == 0, n, n + 4 - n % 4) == ceildiv(n, 4)*4
select(m == 0, 0, n//m) <= n | m >= 0
select(m == 0, n, n % m) <= n | m >= 0
select(n <= m, 1, 2) == 1 | n <= m
select(n <= m, 1, 2) == 2 | n > m
select(n != m, 1, 2) == 2 | n == m
n >= 8 | select(n < 8, 0, 1) == 1
n == 4 | select(n == 4, 1, 2) == 1
n % 8 == 0 | n == select(m <= 4, 8, 16)
"""

FAILS = """
n == m
n == n + 1
n == 2*n
n != m
n < n
n > 1
n >= 2
n <= 4096
n*m > n
n*n == n
n*m == n + m
(n + m)**2 == n**2 + m**2
2*n == 2*m + 2
3*n != 5*m
n // 2 * 2 == n
(n // 3) // 4 == n // 13
(n + 3)//4 == n//4
(n + 2)//4*4 >= n
ceildiv(n, 4) == n//4 + 1
ceildiv(n, m) == n // m
ceildiv(ceildiv(n, 2), 3) == ceildiv(n, 5)
n % 4 == n % 8
(n % 6) % 4 == n % 4
n % 4 == 0
n % m == m % n
n % m == n
(n*m) % 4 == 0
(n + m) % 4 == n % 4 + m % 4
(n + m)//4 == n//4 + m//4
(n*m)//4 == (n//4)*m
(n*m)//(m + 1) == n
(32*x + y)//64 == x//2
(32*x + y)//64 == x//2 | 0 <= y < 33
n // m == 0
n // m >= 1
n // m // k == n // (m + k)
max(n, m) == n
max(n, m) == n + m
max(n, m) < n + m - 1
min(n, m) >= 2
max(n, m) == min(n, m)
max(n, 2) == n
min(n, 64) == n
max(n, m)*min(n, k) == n*m
max(n - m, 0) == n - m
n % 16 == 0 | n % 8 == 0
n % 8 == 0 | n % 4 == 0
n >= 9 | n % 8 == 0
(n*m) % 16 == 0 | n % 4 == 0; m % 2 == 0
(n // 2) % 8 == 0 | n % 8 == 0
n % 4 == 0 | n == 2*m
n == m | n <= m
n < m | n <= m
n <= 63 | n <= m; m <= 64
n == 0 | n >= 0
n >= 1 | n >= 0
n == 4 | 4 <= n < 6
b <= 4095 | b*s <= 4096
b*s < 4096 | b*s <= 4096
n > m | n % m == 0
n % 4 == 0 | n % 6 == 0; m % n == 0
x*4 + y < 4*z | 0 <= y < 5; 0 <= x < z
(x*m + y)//m == x | 0 <= y; y <= m; x >= 0
1 <= n <= 63 | n <= 64
n >= 1 and m >= 2
n*n % 4 == 0
n*n % 3 == 1
(n*n - n) % 3 == 0
n**2 != 2*m**2 - 1
7 == 8
select(n <= 64, n, 64) == n
select(n > m, n, m) == m
select(n > 4, n, m) == select(n >= 4, n, m)
select(n > 4, 1, 2) == 1
select(n == m, 1, 2) == 2
select(n % 2 == 0, n, n + 1) % 4 == 0
select(m == 0, 0, n//m) == n | m >= 0
select(n < m, n, m) == max(n, m)
select(n > 4, n, m) + select(n > 4, n, m) == n + m
n >= 9 | select(n < 8, 0, 1) == 1
select(n <= m, 1, 2) == 1 | n <= m + 1
"""


def lines(table: str) -> list[tuple[str, list[str]]]:
    """The statements of a table, each with its assumptions."""
    found: list[tuple[str, list[str]]] = []
    for line in table.strip().splitlines():
        statement, _, assumed = line.partition("|")
        found.append((statement.strip(), [text.strip() for text in assumed.split(";") if text.strip()]))
    return found
